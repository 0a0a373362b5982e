"""Room 4's tests: the judge is judged."""
