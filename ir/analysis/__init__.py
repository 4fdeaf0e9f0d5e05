"""What can be proved about an expression or a task."""
