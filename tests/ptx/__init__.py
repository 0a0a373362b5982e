"""The machine that executes PTX: reading, units, lanes, schedules; each against an unlike second opinion."""
