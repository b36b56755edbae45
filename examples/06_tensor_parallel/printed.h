// A softmax that a public tutorial prints in two halves: 5 rows of 8 logits, drawn by torch.manual_seed(42) and
// torch.randn(5, 8). They are stored here so that the example needs no PyTorch. kSums and kProbabilities are the
// printed results, to four decimals.
#pragma once

namespace parallel {

inline constexpr float kLogits[5][8] = {
    {1.92691529f, 1.48728406f, 0.90071720f, -2.10552096f, 0.67841846f, -1.23454487f, -0.04306748f, -1.60466695f},
    {-0.75213528f, 1.64872301f, -0.39247864f, -1.40360713f, -0.72788131f, -0.55943018f, -0.76883888f, 0.76244539f},
    {1.64231694f, -0.15959747f, -0.49739754f, 0.43958926f, -0.75813115f, 1.07831764f, 0.80080056f, 1.68062055f},
    {0.03491234f, 0.32110301f, 1.57360017f, -0.84546745f, 1.31230760f, 0.68715960f, -1.08917534f, -0.35528663f},
    {-1.41805995f, 0.89626831f, 0.04990539f, 2.26671791f, 1.17895091f, -0.43445441f, -1.38636553f, -1.28621554f}};

/// Sums of exp(logit), by row.
inline constexpr float kSums[5] = {17.2970f, 10.2543f, 19.1843f, 14.4078f, 17.8164f};

inline constexpr float kProbabilities[5][8] = {
    {0.3971f, 0.2558f, 0.1423f, 0.0070f, 0.1139f, 0.0168f, 0.0554f, 0.0116f},
    {0.0460f, 0.5071f, 0.0659f, 0.0240f, 0.0471f, 0.0557f, 0.0452f, 0.2090f},
    {0.2693f, 0.0444f, 0.0317f, 0.0809f, 0.0244f, 0.1532f, 0.1161f, 0.2799f},
    {0.0719f, 0.0957f, 0.3348f, 0.0298f, 0.2578f, 0.1380f, 0.0234f, 0.0487f},
    {0.0136f, 0.1375f, 0.0590f, 0.5415f, 0.1825f, 0.0363f, 0.0140f, 0.0155f}};

}  // namespace parallel
