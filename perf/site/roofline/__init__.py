"""How near every case comes to the ceiling that was measured on its device."""
