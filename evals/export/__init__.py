"""Write instances in the formats of other programs: tasks for Harbor, which `in_harbor` grades there, and rows of SWE-bench."""
