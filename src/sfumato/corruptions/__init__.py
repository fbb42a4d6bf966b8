"""What the world does to images: noise, blur, weather and digital damage, by severity."""
