"""The program `loco`: one module a command."""
