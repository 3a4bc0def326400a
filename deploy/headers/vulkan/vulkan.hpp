// Debian 12 has Vulkan headers 1.3.239. To configure validation layers, llama.cpp uses types of VK_EXT_layer_settings,
// which came with 1.3.272; nothing else that it needs is newer. They are defined here with the layout that the
// specification gives them. CPLUS_INCLUDE_PATH puts this file before the system's header; an SDK's own headers come
// first.
#pragma once

#include_next <vulkan/vulkan.hpp>

#ifndef VK_EXT_layer_settings

#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT : std::int32_t { eBool32 = 0 };

struct LayerSettingEXT {
    const char * pLayerName;
    const char * pSettingName;
    LayerSettingTypeEXT type;
    std::uint32_t valueCount;
    const void * pValues;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & settings)
        : settingCount(static_cast<std::uint32_t>(settings.size())), pSettings(settings.data()) {}

    std::int32_t sType = 1000496000;  // VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT
    const void * pNext = nullptr;
    std::uint32_t settingCount;
    const LayerSettingEXT * pSettings;
};

}  // namespace vk

#endif
