"""Numbers that the papers report, to compare ours with."""

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
# The same table: Tiny-ImageNet, ResNet-50, ECE in %.
ACLS_TABLE_3_TINY_IMAGENET = {
    "cross entropy": "3.73",
    "cross entropy, temperature": "1.63",
    "label smoothing": "3.17",
    "MbLS": "1.64",
    "ACLS": "1.05",
}
# ACLS paper, Tables 5 and 6, supplement's Table A: Tiny-ImageNet, ResNet-50, ECE in %. The weights
# of Table A are compared on the validation split, where the whole loss has 1.31.
ACLS_ABLATIONS = {
    "ACLS": "1.05",
    "label smoothing": "3.17",
    "MbLS": "1.64",
    "adaptive only": "1.54",
    "conditional only": "1.32",
    "ranking": "1.48",
    "predicted class only": "2.67 (of 1.31)",
    "other classes only": "2.94 (of 1.31)",
}
# MbLS appendix, Table 1: the same after temperature scaling (PosT), with the temperature.
MBLS_TABLE_1 = {
    "cross entropy": "2.34 (3.9)",
    "label smoothing": "1.75 (0.9)",
    "focal": "1.34 (0.7)",
    "FLSD": "1.30 (0.7)",
    "MbLS": "1.16 (1.0)",
}
ACLS_TABLE_3_AND_MBLS_TABLE_1 = {
    method: f"{numbers}; {MBLS_TABLE_1.get(method, '–')}"
    for method, numbers in ACLS_TABLE_3.items()
}
# The same table, 20 Newsgroups: ECE in % before and after temperature scaling (temperature).
MBLS_TABLE_1_NEWSGROUPS = {
    "cross entropy": "22.75; 3.01 (3.1)",
    "label smoothing": "8.07; 3.69 (1.2)",
    "focal": "10.80; 3.33 (1.4)",
    "FLSD": "10.87; 4.10 (1.4)",
    "MbLS": "5.40; 2.09 (1.1)",
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
# Spatial smoothing paper, Table E.4: CamVid, U-Net; NLL, accuracy, ECE and consistency in %.
CAMVID_TABLE_E4 = {
    "deterministic": "0.354, 92.3, 4.95, 95.1",
    "spatial": "0.318, 92.4, 4.54, 95.5",
    "temporal": "0.290, 92.5, 3.18, 96.3",
    "spatial + temporal": "0.278, 92.5, 3.03, 96.6",
    "MC dropout": "0.298, 92.5, 4.20, 95.4",
    "MC dropout, spatial": "0.284, 92.6, 3.96, 95.6",
    "MC dropout, temporal": "0.273, 92.6, 3.23, 96.4",
    "MC dropout, spatial + temporal": "0.260, 92.6, 2.71, 96.5",
}
# Adaptive label smoothing paper, Table 1: ImageNet without its objects, ResNet-50; accuracy and
# mean confidence in %.
OBJECTNESS_TABLE_1 = {
    "hard label": "6.3, 29.8",
    "label smoothing 0.1": "6.2, 20.6",
    "CutMix": "9.2, 20.1",
    "ALS, beta 1": "4.7, 1.9",
}
# Table 2, validation set V1: accuracy, ECE (15 bins), over- and underconfidence in %.
OBJECTNESS_TABLE_2 = {
    "hard label": "68.0, 7.6, 54.9, 13.2",
    "label smoothing 0.1": "68.7, 4.6, 40.7, 24.4",
    "CutMix": "69.8, 2.0, 47.7, 19.7",
    "ALS, beta 1": "64.8, 18.2, 24.6, 39.6",
    "ALS, beta 0.75": "68.1, 14.2, 31.9, 33.7",
    "ALS, beta 0.25": "68.4, 5.2, 40.2, 24.4",
    "ALS + context": "63.7, 16.9, 25.1, 39.0",
}
