"""`pycollective doctor`: what is found out about the machine, its software, GPUs and network."""
