"""Small dual encoders for studies, which train in seconds on one core."""
