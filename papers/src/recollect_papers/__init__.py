"""Tables and figures of the four papers, and synthetic worlds to run them on."""
