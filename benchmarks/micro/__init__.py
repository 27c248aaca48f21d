"""Small parts measured alone, beside their floor."""
