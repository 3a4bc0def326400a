/* Stands between llama.cpp and the Vulkan loader (by LD_PRELOAD), and breaks the device when it is told to:
 *   FAULTY_LOST=FILE  once FILE is there, the device is lost: whatever it is asked to compute fails;
 *   FAULTY_BYTES=N    the device has N bytes of memory: what goes beyond them cannot be allocated. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vulkan.h>

static PFN_vkGetInstanceProcAddr next_instance;
static PFN_vkGetDeviceProcAddr next_device;
static PFN_vkQueueSubmit next_submit;
static PFN_vkAllocateMemory next_allocate;
static atomic_ullong allocated; /* never lowered: what a test allocates it keeps */

static int is_lost(void) {
    const char *file = getenv("FAULTY_LOST");
    return file && access(file, F_OK) == 0;
}

static VkResult submit(VkQueue queue, uint32_t count, const VkSubmitInfo *submits, VkFence fence) {
    return is_lost() ? VK_ERROR_DEVICE_LOST : next_submit(queue, count, submits, fence);
}

static VkResult allocate(VkDevice device, const VkMemoryAllocateInfo *wanted, const VkAllocationCallbacks *how,
                         VkDeviceMemory *memory) {
    const char *limit = getenv("FAULTY_BYTES");
    if (limit && atomic_load(&allocated) + wanted->allocationSize > strtoull(limit, NULL, 10))
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    VkResult result = next_allocate(device, wanted, how, memory);
    if (result == VK_SUCCESS)
        atomic_fetch_add(&allocated, wanted->allocationSize);
    return result;
}

static PFN_vkVoidFunction replaced(const char *name, PFN_vkVoidFunction found);

static PFN_vkVoidFunction device_function(VkDevice device, const char *name) {
    return replaced(name, next_device(device, name));
}

static PFN_vkVoidFunction replaced(const char *name, PFN_vkVoidFunction found) {
    if (!found)
        return found;
    if (!strcmp(name, "vkGetDeviceProcAddr"))
        return next_device = (PFN_vkGetDeviceProcAddr)found, (PFN_vkVoidFunction)device_function;
    if (!strcmp(name, "vkQueueSubmit"))
        return next_submit = (PFN_vkQueueSubmit)found, (PFN_vkVoidFunction)submit;
    if (!strcmp(name, "vkAllocateMemory"))
        return next_allocate = (PFN_vkAllocateMemory)found, (PFN_vkVoidFunction)allocate;
    return found;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char *name) {
    if (!next_instance) /* RTLD_NEXT knows nothing of what the bindings load */
        next_instance =
            (PFN_vkGetInstanceProcAddr)dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkGetInstanceProcAddr");
    return replaced(name, next_instance(instance, name));
}
