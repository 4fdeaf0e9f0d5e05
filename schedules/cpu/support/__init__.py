"""Cost rates, load balance and the end of every CPU kernel."""
