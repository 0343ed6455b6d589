"""Conversion of logical parameters to foreign formats; imports nothing heavy by itself."""
