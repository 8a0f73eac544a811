"""Code that models/*/make.py share: networks, training, calibration, and the comparison of engines."""
