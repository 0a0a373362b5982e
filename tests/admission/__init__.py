"""Admission of a GPU, with the floor in the device's place."""
