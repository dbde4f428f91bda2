"""What a run's results say: rates with intervals, costs, comparisons, and how they are shown and exported."""
