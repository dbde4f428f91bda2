"""What is shown of a repository that does not fit: reading its terms, ranking its files, outlining the rest."""
