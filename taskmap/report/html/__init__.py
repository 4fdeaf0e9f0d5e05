"""The page of a report: one HTML file with its style, its script and its pictures, which needs nothing else."""
