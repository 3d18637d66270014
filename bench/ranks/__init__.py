"""The ranks of a run: how they are started and on which hosts, what each executes, and how they report."""
