"""Results for display: tables, the table of a session as it grows, and plots."""
