// placeholder until the images are built
#pragma once
#include <span>
#include <string_view>
namespace rondo {
struct KernelImage { std::string_view name; const void* data; };
std::span<const KernelImage> kernel_images();
const KernelImage* find_kernel_image(std::string_view kernel);
}
