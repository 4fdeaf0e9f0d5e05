"""Wing 2, how to compute it: templates, rules, spaces and post-scheduling fusion. Imports only ir."""
