"""A study of methods on the text problem: points, their tuning, their runs as rows, and what the rows say."""
