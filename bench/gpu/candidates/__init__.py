"""What is measured in turns: our own calls, NCCL, torch and the engine's packing, on common inputs and outputs."""
