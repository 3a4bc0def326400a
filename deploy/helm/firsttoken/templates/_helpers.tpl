{{- define "firsttoken.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "firsttoken.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "firsttoken.selector" . }}
{{- end -}}

{{- define "firsttoken.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "firsttoken.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "firsttoken.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "firsttoken.container" -}}
image: {{ include "firsttoken.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* All engines that may exist: workers probe absent ones every second, and use the others meanwhile. */}}
{{- define "firsttoken.engines" -}}
{{- $engines := .Values.engines -}}
{{- $most := $engines.autoscaling.enabled | ternary $engines.autoscaling.maxReplicas $engines.replicas | int -}}
{{- $name := include "firsttoken.name" . -}}
{{- range $index := until $most -}}
{{- if $index }},{{ end -}}
http://{{ $name }}-engine-{{ $index }}.{{ $name }}-engine:9000
{{- end -}}
{{- end -}}
