"""What attention takes, case by case: our implementations beside their peers."""
