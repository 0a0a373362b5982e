"""The floor: number formats and device arithmetic. Knows nothing of attention."""
