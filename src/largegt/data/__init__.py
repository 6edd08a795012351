"""From the user's files to a GraphStore."""
