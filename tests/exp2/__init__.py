"""The exp2 laboratory: every figure against an unlike second opinion."""
