"""What is measured: cases, their inputs and the results expected of them, and the candidates of a run."""
