"""How this process finds its rank and its peers, under each launcher."""
