"""Wing 1, what to compute: the graph, its operators, importers, passes and fusion planning. Imports only ir."""
