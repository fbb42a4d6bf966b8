"""Networks of the papers at CIFAR and ImageNet stems, and torchvision's by name."""
