"""What models/*/make.py share: networks, training, calibration, how far engines agree."""
