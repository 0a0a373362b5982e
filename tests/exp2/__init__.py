"""The exp2 laboratory: figures, fits and findings, each against an unlike second opinion."""
