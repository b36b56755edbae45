"""The parts of bench/compare_peers: contenders, launches, floors, statistics, verdicts, report."""
