"""What the papers report for CIFAR-10, to stand beside our numbers."""

# ACLS paper, Table 3: CIFAR-10, ResNet-50, ECE / AECE in %.
ACLS_TABLE_3 = {
    "cross entropy": "5.85 / 5.84",
    "cross entropy, temperature": "3.68 / 3.67",
    "MMCE": "3.10 / 3.10",
    "ECP": "3.01 / 2.99",
    "label smoothing": "2.79 / 3.85",
    "focal": "3.90 / 3.86",
    "FLSD": "3.84 / 3.60",
    "MDCA": "6.86 / 6.73",
    "CPC": "3.91 / 3.91",
    "MbLS": "1.16 / 3.18",
    "CRL": "3.14 / 3.11",
    "ACLS": "1.12 / 2.87",
}
# Mollification paper, Table 1: CIFAR-10, preactResNet-50; error in % and ECE, clean / corrupted.
MOLLIFICATION_TABLE_1 = {
    "FCR": "5.0 / 21.9, 0.04 / 0.18",
    "FCR + mollification": "5.8 / 10.2, 0.04 / 0.08",
    "FCR + TrivAug": "3.4 / 12.1, 0.03 / 0.09",
    "FCR + TrivAug + mollification": "4.0 / 8.0, 0.04 / 0.07",
    "FCR + MixUp": "4.1 / 21.9, 0.19 / 0.22",
    "FCR + MixUp + mollification": "4.7 / 9.4, 0.21 / 0.22",
}
# Spatial smoothing paper, Table E.1: CIFAR-10, ResNet-18 and VGG-19; NLL, accuracy and ECE in %.
SPATIAL_TABLE_E1 = {
    "ResNet": "0.182, 95.2, 2.75",
    "ResNet, MC dropout": "0.157, 95.2, 1.14",
    "ResNet, MC dropout + smooth": "0.144, 95.5, 1.04",
    "VGG": "0.401, 93.1, 3.80",
    "VGG, MC dropout": "0.238, 92.6, 3.55",
    "VGG, MC dropout + smooth": "0.197, 93.3, 0.68",
}
