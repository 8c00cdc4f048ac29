"""Programs that several tests and benchmarks of the simulated device run."""
