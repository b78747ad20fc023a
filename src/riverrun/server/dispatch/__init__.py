"""From a frame to its handler and back; forwarding to the controller."""
