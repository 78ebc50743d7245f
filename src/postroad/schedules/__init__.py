"""When schedules are due, and what becomes of each occurrence."""
