"""Room 5: who reads the verdict."""
