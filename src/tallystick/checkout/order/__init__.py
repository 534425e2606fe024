"""An order is a reservation: granted, paid, cancelled or swept."""
