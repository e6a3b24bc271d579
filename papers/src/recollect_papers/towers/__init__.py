"""Small dual encoders for studies that train in seconds on one core."""
