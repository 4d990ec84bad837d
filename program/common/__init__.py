"""What every room shares: settings, errors, files, progress and command lines. It imports none of the rooms."""
