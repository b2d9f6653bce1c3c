"""The command line of the simulator: many seeds side by side, or one with its trace."""

from culver.testing.simulation.command import main

main()
