{{- define "slotwise.name" -}}
{{- if contains "slotwise" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-slotwise" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- define "slotwise.picks" -}}
app.kubernetes.io/name: slotwise
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "slotwise.labels" -}}
{{ include "slotwise.picks" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "slotwise.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end -}}

{{- define "slotwise.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "slotwise.serverResources" -}}
{{- $resources := deepCopy .Values.serverResources -}}
{{- if .Values.gpus -}}
{{- $_ := set $resources "requests" (merge (dict "nvidia.com/gpu" .Values.gpus) (default dict $resources.requests)) -}}
{{- $_ := set $resources "limits" (merge (dict "nvidia.com/gpu" .Values.gpus) (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
