"""`taskmap tune`: measuring configurations."""
