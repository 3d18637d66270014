"""Where and in which order a process group executes its calls, and what asynchronous ones return."""
