"""What bench/compare_peers is made of: contenders, launches, floors, statistics, verdicts, report."""
